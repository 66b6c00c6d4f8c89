"""Finds the best design under limits: a new model, a smaller version of an existing model, or a fleet of devices.

A search consists of ``run`` (its file and folder), ``phases`` (its steps in order), ``strategies`` (algorithms),
``prices`` (costs of whole spaces), ``targets`` (devices that may serve a model) and ``report`` (results for readers).
``shrink`` prunes a pretrained model, ``quantize`` chooses number formats, ``fleet`` plans devices. Costs come from
:mod:`chipwise.predict`, quality from :mod:`chipwise.training`.
"""
