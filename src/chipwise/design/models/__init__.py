"""One model by itself, outside a search: measured, exported, packed for another device, or priced on this machine.

A model is named, a file, or a winner's folder, whose design, workload and limits apply where nothing else is given.
"""
