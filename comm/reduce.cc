#include "comm/reduce.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "c10/util/complex.h"
#include "mesh/error.h"

namespace lins {
namespace {

constexpr int64_t kBlock = 2048;  // elements accumulated at a time: stays in the first-level cache

template <typename T>
constexpr bool kIsComplex = c10::is_complex<T>::value;

// What to do with the parts: see ReduceInOrder.
struct Shape {
  absl::Span<const int64_t> runs;  // at least one
  int64_t divisor;
};

// Every loop below keeps acc and part apart, so that the compiler can use vector instructions.
// acc[i] = parts[0][begin + i] op parts[1][begin + i] op ... for i up to `size`.
template <typename T, typename Acc, typename Fn>
void Fold(Acc* acc, absl::Span<const void* const> parts, int64_t begin, int64_t size, Fn fn) {
  const T* first = static_cast<const T*>(parts[0]) + begin;
  for (int64_t i = 0; i < size; ++i) acc[i] = static_cast<Acc>(first[i]);
  for (const void* next : parts.subspan(1)) {
    const T* part = static_cast<const T*>(next) + begin;
    for (int64_t i = 0; i < size; ++i) acc[i] = fn(acc[i], static_cast<Acc>(part[i]));
  }
}

template <typename T, typename Acc>
void Round(Acc* acc, int64_t size) {
  if constexpr (!std::is_same_v<T, Acc>) {
    for (int64_t i = 0; i < size; ++i) acc[i] = static_cast<Acc>(static_cast<T>(acc[i]));
  }
}

template <typename T, typename Acc, typename Fn>
void Blocks(T* out, absl::Span<const void* const> parts, int64_t n, Shape shape, bool average,
            Fn fn) {
  Acc acc[kBlock], next[kBlock];
  const auto count = static_cast<Acc>(static_cast<float>(shape.divisor));
  const bool round = !average && shape.runs.size() > 1;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t size = std::min(kBlock, n - begin);
    Fold<T>(acc, parts.subspan(0, shape.runs[0]), begin, size, fn);
    if (round) Round<T>(acc, size);
    size_t done = shape.runs[0];
    for (const int64_t run : shape.runs.subspan(1)) {
      Fold<T>(next, parts.subspan(done, run), begin, size, fn);
      if (round) Round<T>(next, size);
      for (int64_t i = 0; i < size; ++i) acc[i] = fn(acc[i], next[i]);
      done += run;
    }
    if (average) {
      for (int64_t i = 0; i < size; ++i) acc[i] = acc[i] / count;
    }
    for (int64_t i = 0; i < size; ++i) out[begin + i] = static_cast<T>(acc[i]);
  }
}

template <typename T, typename Acc = T>
void Reduce(void* out, absl::Span<const void* const> parts, int64_t n, ReduceOp op, Shape shape) {
  const auto run = [&](auto fn) {
    Blocks<T, Acc>(static_cast<T*>(out), parts, n, shape, op == ReduceOp::kAvg, fn);
  };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return run([](Acc a, Acc b) { return static_cast<Acc>(a + b); });
    case ReduceOp::kProduct:
      return run([](Acc a, Acc b) { return static_cast<Acc>(a * b); });
    case ReduceOp::kMin:
      if constexpr (!kIsComplex<T>)
        return run([](Acc a, Acc b) { return b != b || b < a ? b : a; });
      break;
    case ReduceOp::kMax:
      if constexpr (!kIsComplex<T>)
        return run([](Acc a, Acc b) { return b != b || b > a ? b : a; });
      break;
    case ReduceOp::kBand:
      if constexpr (std::is_integral_v<T>) return run([](Acc a, Acc b) -> Acc { return a & b; });
      break;
    case ReduceOp::kBor:
      if constexpr (std::is_integral_v<T>) return run([](Acc a, Acc b) -> Acc { return a | b; });
      break;
    case ReduceOp::kBxor:
      if constexpr (std::is_integral_v<T>) return run([](Acc a, Acc b) -> Acc { return a ^ b; });
      break;
  }
  LINS_CHECK(false, "reduction ", ReduceOpName(op), " of an unsuitable type");
}

}  // namespace

std::string ReduceProblem(c10::ScalarType dtype, ReduceOp op) {
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  const bool known = integral || dtype == at::kFloat || dtype == at::kDouble ||
                     dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kComplexFloat ||
                     dtype == at::kComplexDouble;
  const bool bits = op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor;
  const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  std::string legal;
  if (!known || dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64) {
    legal =
        "float, double, half, bfloat16, complex, bool and integers of 8 to 64 bits can be reduced";
  } else if (bits && !integral) {
    legal = "bitwise reductions take integers and bool";
  } else if (op == ReduceOp::kAvg && integral) {
    legal = "an average needs a floating-point type; reduce with sum and divide";
  } else if (order && c10::isComplexType(dtype)) {
    legal = "complex numbers have no order";
  } else if (dtype == at::kBool && !bits && !order) {
    legal = "bool reduces with min, max, band, bor or bxor";
  } else {
    return "";
  }
  return absl::StrCat("cannot reduce ", c10::toString(dtype), " with ", ReduceOpName(op), ": ",
                      legal);
}

void ReduceInOrder(void* out, absl::Span<const void* const> parts, int64_t n, c10::ScalarType dtype,
                   ReduceOp op, absl::Span<const int64_t> runs, int64_t divisor) {
  const auto k = static_cast<int64_t>(parts.size());
  if (runs.empty()) runs = absl::MakeConstSpan(&k, 1);
  LINS_CHECK(std::accumulate(runs.begin(), runs.end(), int64_t{0}) == k, "runs of ", k, " parts");
  const Shape shape = {runs, divisor > 0 ? divisor : k};
  switch (dtype) {
    case at::kFloat:
      return Reduce<float>(out, parts, n, op, shape);
    case at::kDouble:
      return Reduce<double>(out, parts, n, op, shape);
    case at::kHalf:
      return Reduce<c10::Half, float>(out, parts, n, op, shape);
    case at::kBFloat16:
      return Reduce<c10::BFloat16, float>(out, parts, n, op, shape);
    case at::kComplexFloat:
      return Reduce<c10::complex<float>>(out, parts, n, op, shape);
    case at::kComplexDouble:
      return Reduce<c10::complex<double>>(out, parts, n, op, shape);
    case at::kBool:
      return Reduce<bool>(out, parts, n, op, shape);
    case at::kByte:
      return Reduce<uint8_t>(out, parts, n, op, shape);
    case at::kChar:
      return Reduce<int8_t>(out, parts, n, op, shape);
    case at::kShort:
      return Reduce<int16_t>(out, parts, n, op, shape);
    case at::kInt:
      return Reduce<int32_t>(out, parts, n, op, shape);
    case at::kLong:
      return Reduce<int64_t>(out, parts, n, op, shape);
    default:
      LINS_CHECK(false, ReduceProblem(dtype, op));
  }
}

}  // namespace lins
