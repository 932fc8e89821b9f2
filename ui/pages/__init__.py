"""The pages of the app: each lays out its components and draws a run into them."""
