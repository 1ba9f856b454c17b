"""Links to draft processes on other machines: over TCP, by zmq.

All of one draft travels over one connection: frames of rounds, control messages, and the words that
shared memory has elsewhere. `hub` is the target's end for all of them, `connection` a draft's;
`wire` is what they have in common. Both check what arrives as they do on one machine; nothing is
ever unpickled. Who may connect is the network's affair: docs/security.md.
"""
