"""One TCP stream from memory to memory: tcp.py receive PORT, or tcp.py send ADDRESS PORT MIB. Prints the seconds."""

import socket
import sys
import time

if sys.argv[1] == "receive":
    with socket.create_server(("", int(sys.argv[2]))) as server, server.accept()[0] as peer:
        buffer = bytearray(2**20)
        while peer.recv_into(buffer):
            pass
        peer.sendall(b"!")
else:
    data = bytes(2**20)
    with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=60) as peer:
        began = time.monotonic()
        for _block in range(int(sys.argv[4])):
            peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
        print(time.monotonic() - began)
