// Everything a C++ user includes.
#pragma once

#include <torchdion/layout.h>
#include <torchdion/options.h>
