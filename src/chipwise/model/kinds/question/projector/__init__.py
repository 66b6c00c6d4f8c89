"""The projector from patches to tokens: it averages or joins neighbours, then applies two matrices."""
