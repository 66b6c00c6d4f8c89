"""Commands on a single model, outside a search: measuring, exporting, packing for another device, pricing here.

A model is given by name, as a file, or as a winner's folder, whose design, workload and limits are the defaults.
"""
