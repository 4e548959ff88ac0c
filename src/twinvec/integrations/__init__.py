"""`twinvec.Encoder` under the interfaces of other libraries. Each module imports its library only when it is used."""
