"""The projector from patches to tokens: neighbours averaged or joined, then two matrices."""
