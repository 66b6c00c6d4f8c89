"""Training: data sets, tasks, training loops, and estimates of a model's quality.

``data`` holds text sources and the protocol of data sets, ``tasks`` one folder per task, ``loop`` the training loop for
one model, ``supernet`` the training of shared weights, ``trainers`` the places where trainings run, ``laws`` the
scaling laws that predict the loss of untrained models, ``evaluations`` the scores of text models on tasks. Choosing
what to train is the work of :mod:`chipwise.design`.
"""
