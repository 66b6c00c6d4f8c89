"""Models: what they are, what they compute, and which are possible.

``arch`` holds architectures as values, ``kinds`` one folder for each kind of model that is built, ``blocks`` what kinds
share, ``walk`` the ways from an architecture to weights, operators, torch and ONNX. ``ops`` counts FLOPs and bytes,
``published`` reads Hugging Face configs, ``space`` describes choices. Nothing here knows a chip.
"""
