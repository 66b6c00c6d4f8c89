"""Commands for single models, outside a search: measure, export, serve, and pack a kit for another device.

A model is given by name, as a file, or as the folder of a search's winner. A winner's design, workload and limits are
then the defaults.
"""
