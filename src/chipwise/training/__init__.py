"""Training: data, quality, and where models are trained.

``data`` is text and the protocol of data sets, ``tasks`` one folder for each thing asked of a model, ``loop`` one
training, ``supernet`` the training of shared weights, ``trainers`` where trainings run, ``laws`` what loss to expect of
sizes that are not trained, ``evaluations`` the scores of text models. Choosing what to train is the work of
:mod:`chipwise.design`.
"""
