"""A node that says what it is, if it is told to; it lives on otherwise."""

import json
import os
import sys
import time

if "tell" in sys.argv:
    told = {
        "argv": sys.argv,
        "name": __name__,
        "num_threads": len(os.listdir("/proc/self/task")),
        "is_leader": os.getsid(0) == os.getpid(),
    }
    os.write(int(sys.argv[-1]), (json.dumps(told) + "\n").encode())
    sys.exit(3)
time.sleep(60)
