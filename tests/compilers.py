"""Whether the machine can build the yardstick in C++."""

import shutil

HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
