"""The custom resources as users write them: `SharingPolicy` and `Team`, fairslice.io/v1alpha1."""

GROUP = "fairslice.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
