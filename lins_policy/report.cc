#include "lins_policy/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lins {
namespace {

// Scaled to the largest unit that leaves at least 1.
std::string Scaled(double value, const std::vector<std::pair<double, const char*>>& units) {
  for (const auto& [size, name] : units) {
    if (std::abs(value) >= size) return absl::StrFormat("%.4g %s", value / size, name);
  }
  return absl::StrFormat("%.4g %s", value / units.back().first, units.back().second);
}

std::string Text(const ReportTable& table) {
  std::vector<size_t> widths;
  for (const std::string& c : table.columns) widths.push_back(c.size());
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t i = 0; i < cells.size(); ++i) {
      absl::StrAppend(&out, "  ", cells[i]);
      if (i + 1 < cells.size()) out.append(widths[i] - cells[i].size(), ' ');
    }
    absl::StrAppend(&out, "\n");
    return out;
  };
  std::string out = absl::StrCat(table.title, "\n", line(table.columns));
  for (const auto& row : table.rows) absl::StrAppend(&out, line(row));
  return out;
}

}  // namespace

std::string Report::ToString() const {
  std::string out = absl::StrCat(title, "\n");
  for (const ReportTable& t : tables) absl::StrAppend(&out, "\n", Text(t));
  if (!notes.empty()) out += "\n";
  for (const std::string& n : notes) absl::StrAppend(&out, n, "\n");
  for (const std::string& w : warnings) absl::StrAppend(&out, "warning: ", w, "\n");
  return out;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes == 0) return "0";
  return Scaled(static_cast<double>(bytes),
                {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}});
}

std::string FormatSeconds(double seconds) {
  if (seconds == 0) return "0";
  return Scaled(seconds, {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}});
}

}  // namespace lins
