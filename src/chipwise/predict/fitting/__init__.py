"""Fits what ships, from aiconfigurator-core's tables; never needed to predict. Each kind is a file with a ``fit``."""
