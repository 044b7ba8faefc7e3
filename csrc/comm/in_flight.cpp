#include "comm/in_flight.h"

#include <utility>

#include "comm/line.h"

namespace torchdion::comm {

bool has_in_flight_group(const Axis& axis) { return axis.absent() || axis.line->in_flight; }

bool is_under_way(const Axis& axis) { return axis.line->in_flight && axis.line->in_flight->is_under_way; }

void set_under_way(const Axis& axis, bool is_under_way) { axis.line->in_flight->is_under_way = is_under_way; }

Layout in_flight(Layout layout) {
  for (Axis* axis : {&layout.rows, &layout.cols, &layout.replicas}) {
    if (!axis->absent()) axis->line = axis->line->in_flight;
  }
  return layout;
}

void move_counts(const Layout& layout) {
  for (const Axis* axis : {&layout.rows, &layout.cols, &layout.replicas}) {
    if (axis->absent()) continue;
    AxisTraffic &to = axis->line->traffic, &from = axis->line->in_flight->traffic;
    for (Traffic AxisTraffic::*kind : {&AxisTraffic::all_reduce, &AxisTraffic::reduce_scatter, &AxisTraffic::all_gather,
                                       &AxisTraffic::all_to_all, &AxisTraffic::completion, &AxisTraffic::agreement}) {
      add(to.*kind, std::exchange(from.*kind, {}));
    }
  }
}

}  // namespace torchdion::comm
