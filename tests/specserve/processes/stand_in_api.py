import sys

from stand_in import main

sys.exit(main("api"))
