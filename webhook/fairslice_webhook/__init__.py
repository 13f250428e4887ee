"""The admission webhook: reviews in, decisions out."""
