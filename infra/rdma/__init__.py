"""RDMA without RDMA hardware: a VM with Soft-RoCE, for the tests and the bench of the verbs transfer.

`pins` says which Debian packages it is made of, `fetch` gets and unpacks them, `vm` boots it and runs a command inside.
"""
