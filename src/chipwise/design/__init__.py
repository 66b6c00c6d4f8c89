"""Finds the best under limits: a new model, a smaller version of an existing one, a fleet of devices.

``run`` is the file and folder of a search, ``phases`` its steps in order, ``strategies`` the algorithms, ``prices``
the costs of whole spaces, ``targets`` the devices that will serve a model, ``report`` the results for readers.
``shrink`` cuts a pretrained model, ``quantize`` chooses number formats, ``fleet`` plans devices. Costs come from
:mod:`chipwise.predict`, quality from :mod:`chipwise.training`.
"""
