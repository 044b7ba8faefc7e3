// The second groups of axes (Axis::set_in_flight_group), over which another thread communicates than the program's own.
#pragma once

#include <torchdion/layout.h>

namespace torchdion::comm {

// Whether it is absent or has such a group.
bool has_in_flight_group(const Axis& axis);

// The same line of ranks over its second group. Counts are its own until land().
Axis in_flight(const Axis& axis);
Layout in_flight(Layout layout);

// Moves to the axis what was counted in flight, which has ended.
void land(const Axis& axis);
void land(const Layout& layout);

}  // namespace torchdion::comm
