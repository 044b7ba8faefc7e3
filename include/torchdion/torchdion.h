// Everything a C++ user includes.
#pragma once

#include <torchdion/checkpoint.h>
#include <torchdion/layout.h>
#include <torchdion/optim.h>
#include <torchdion/optimizer.h>
#include <torchdion/options.h>
#include <torchdion/process_group.h>
#include <torchdion/routing.h>
