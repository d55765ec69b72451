// Tables with notes: what explanations are made of. C++ prints them as text, Python as rich tables.
#pragma once

#include <string>
#include <vector>

namespace lins {

struct ReportTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // as many cells as columns
};

struct Report {
  std::string title;
  std::vector<ReportTable> tables;
  std::vector<std::string> notes;     // facts
  std::vector<std::string> warnings;  // what a user would want to change
  std::string ToString() const;
};

std::string FormatBytes(int64_t bytes);     // 38.5 GB: powers of ten
std::string FormatSeconds(double seconds);  // 12.3 ms

}  // namespace lins
