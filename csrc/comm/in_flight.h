// The second groups of axes (Axis::set_in_flight_group), over which another thread communicates than the program's own.
#pragma once

#include <torchdion/layout.h>

namespace torchdion::comm {

// Whether it is absent or has such a group.
bool has_in_flight_group(const Axis& axis);

// Whether its second group carries something that has not been waited for, and that it does or no longer does.
bool is_under_way(const Axis& axis);
void set_under_way(const Axis& axis, bool is_under_way);

// The same lines of ranks over their second groups. Counts are these ones' until move_counts().
Layout in_flight(Layout layout);

// Moves to the axes what was counted in flight, which has ended.
void move_counts(const Layout& layout);

}  // namespace torchdion::comm
