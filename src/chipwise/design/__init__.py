"""Finds the best under limits: a new model, a smaller version of an existing one, a fleet of devices.

``run`` is the file and folder of a search, ``phases`` its steps in order, ``strategies`` the algorithms, ``prices`` the
costs of whole spaces, ``targets`` where a model will be served, ``report`` what people read at the end. ``shrink`` cuts
a pretrained model, ``fleet`` plans devices. What a model costs is asked of :mod:`chipwise.predict`, how good it gets of
:mod:`chipwise.training`.
"""
