// Plans as text: one line a step.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "placement/redistribution.h"

namespace lins {

std::string RedistributionPlan::ToString() const {
  std::string out = absl::StrCat(src.ToString(), " -> ", dst.ToString(), " of ",
                                 ShapeToString(src.shape()), " on ", src.mesh().ToString(), "\n");
  std::vector<std::vector<std::string>> rows;
  if (!steps.empty()) {
    rows.push_back({"step", "group", "ranks", "layout", "bytes in", "bytes out", "receives", "peak",
                    "seconds"});
  }
  for (const Step& s : steps) {
    rows.push_back(
        {std::string(StepKindName(s.kind)), absl::StrCat("(", src.mesh().AxesToString(s.axes), ")"),
         absl::StrCat(Mesh::GroupSize(s.axes)),
         absl::StrCat(s.before.ToString(), " -> ", s.after.ToString()), absl::StrCat(s.in_bytes),
         absl::StrCat(s.out_bytes), absl::StrCat(s.recv_bytes), absl::StrCat(s.peak_bytes),
         s.seconds > 0 ? absl::StrFormat("%.3g", s.seconds) : "-"});
  }
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[column].size());
      const bool last = column + 1 == row.size();
      absl::StrAppend(&out, "  ", row[column],
                      last ? "\n" : std::string(width - row[column].size(), ' '));
    }
  }
  if (steps.empty()) absl::StrAppend(&out, "  nothing to do\n");
  absl::StrAppend(&out, "  receives ", recv_bytes, " bytes, lower bound ", lower_bound_bytes);
  if (lower_bound_bytes > 0) {
    const double ratio = static_cast<double>(recv_bytes) / static_cast<double>(lower_bound_bytes);
    absl::StrAppendFormat(&out, ", ratio %.2f", ratio);
  }
  absl::StrAppend(&out, ", peak ", peak_bytes);
  if (seconds > 0) absl::StrAppendFormat(&out, ", %.3g s", seconds);
  return out;
}

}  // namespace lins
