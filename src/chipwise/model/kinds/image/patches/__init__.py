"""The patch stem (convolutions, patch matrix, class token) and the classification head of image models."""
