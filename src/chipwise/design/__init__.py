"""Finds the best design under limits: a new model, a smaller version of an existing model, or a fleet of devices.

``run`` is the file and folder of a search, ``phases`` its steps in order, ``strategies`` the algorithms, ``prices``
the costs of whole spaces, ``targets`` the devices that will serve a model, ``report`` the results for readers.
``shrink`` prunes a pretrained model, ``quantize`` chooses number formats, ``fleet`` plans devices. Costs come from
:mod:`chipwise.predict`, quality from :mod:`chipwise.training`.
"""
