"""Models: architectures with their operators and weights, and search spaces of architectures.

``arch`` holds architectures as values. ``kinds`` has one folder for each kind of model that chipwise builds; ``blocks``
has the code that several kinds share. ``walk`` turns an architecture into weights, operators, a torch module or an ONNX
graph. ``ops`` counts FLOPs and bytes, ``published`` reads Hugging Face configs, ``graphs`` reads users'
ONNX files, ``space`` describes search spaces.
Nothing here depends on a chip.
"""
