// The kernels of the device beside those of the host: the same bits, for all sizes, alignments and
// types. Needs a CUDA device; elsewhere it is skipped, and says so.
#include "kernels/device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../optim/values.h"
#include "comm/reduce.h"
#include "mesh/error.h"
#include "optim/adam.h"
#include "optim/adam8bit.h"
#include "optim/muon.h"
#include "optim/norm.h"
#include "optim/sgd.h"
#include "runtime/verification.h"

namespace lins {
namespace {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!device::Compiled()) GTEST_SKIP() << "lins was built without CUDA";
    if (!at::hasCUDA()) GTEST_SKIP() << "there is no CUDA device";
  }
};

// Tensors in which a slice begins at element `offset`, on the host or the device.
struct Arrays {
  at::Tensor p, g, states[3], copy;

  Arrays(int64_t n, int64_t offset, at::ScalarType type, at::ScalarType grad_type)
      : p(Values(n + offset, type, 1)),
        g(Values(n + offset, type, 2).to(grad_type)),
        copy(at::zeros({n + offset}, at::kBFloat16)) {
    for (int i = 0; i < 3; ++i) states[i] = Values(n + offset, type, 3 + i).abs();
  }
  Arrays(const Arrays& other, at::Device device)
      : p(other.p.to(device, other.p.scalar_type(), false, true)),
        g(other.g.to(device, other.g.scalar_type(), false, true)),
        copy(other.copy.to(device, other.copy.scalar_type(), false, true)) {
    for (int i = 0; i < 3; ++i) {
      states[i] = other.states[i].to(device, p.scalar_type(), false, true);
    }
  }
  Slice slice(int64_t offset, bool with_copy) const {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, offset, t.numel() - offset); };
    Slice s = SliceOf(part(p), part(g), {part(states[0]), part(states[1]), part(states[2])});
    s.on_device = p.is_cuda();
    if (with_copy) s.copy = part(copy).mutable_data_ptr();
    s.grad_scale = 0.5;
    return s;
  }
  void ExpectSame(const Arrays& device, const std::string& where) const {
    EXPECT_TRUE(Same(p, device.p.cpu())) << where;
    EXPECT_TRUE(Same(copy, device.copy.cpu())) << where;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(Same(states[i], device.states[i].cpu())) << where << i;
  }
};

// update(slice) on both, for sizes around those of vectors and blocks, aligned and not.
template <typename Fn>
void Compare(at::ScalarType type, at::ScalarType grad_type, bool stochastic, Fn update) {
  for (const auto& [n, offset] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {1, 0}, {3, 1}, {4, 0}, {5, 0}, {70, 16}, {1024, 0}, {1027, 3}, {100'001, 0}}) {
    Arrays host(n, offset, type, grad_type);
    const Arrays device(host, at::kCUDA);
    for (const Arrays* a : {static_cast<const Arrays*>(&host), &device}) {
      Slice s = a->slice(offset, true);
      s.rounding = {stochastic, 7, 100};
      update(s);
    }
    host.ExpectSame(device, absl::StrCat(n, " from ", offset, " "));
  }
}

constexpr std::pair<at::ScalarType, at::ScalarType> kTypes[] = {
    {at::kFloat, at::kFloat},   {at::kFloat, at::kBFloat16}, {at::kFloat, at::kHalf},
    {at::kDouble, at::kDouble}, {at::kDouble, at::kFloat},   {at::kFloat, at::kDouble}};

TEST_F(OnDevice, AdamHasTheBitsOfTheHost) {
  for (const auto& [type, grad] : kTypes) {
    for (AdamOptions o : {AdamOptions{}, AdamOptions{.maximize = true, .amsgrad = true},
                          AdamOptions{.weight_decay = 0.1, .decoupled = false}}) {
      o.fused = true;
      Compare(type, grad, false, [&](const Slice& s) { AdamUpdate(o, 3, s); });
      Compare(type, grad, true, [&](const Slice& s) { AdamUpdate(o, 3, s); });
    }
  }
}

TEST_F(OnDevice, AdamOfAGraphReadsItsStepOnTheDevice) {
  const int64_t n = 10'000;
  Arrays host(n, 0, at::kFloat, at::kFloat);
  const Arrays device(host, at::kCUDA);
  const AdamOptions options{.lr = 0.25, .fused = true};
  at::Tensor at_start = at::zeros({static_cast<int64_t>(sizeof(device::AdamOnDevice))}, at::kByte);
  *static_cast<device::AdamOnDevice*>(at_start.mutable_data_ptr()) = {0, 0.25, 0.5};
  const at::Tensor state = at_start.cuda();
  device::Slice s;
  s.numel = n;
  s.param = device.p.mutable_data_ptr();
  s.grad = device.g.mutable_data_ptr();
  s.state[0] = device.states[0].mutable_data_ptr();
  s.state[1] = device.states[1].mutable_data_ptr();
  for (int64_t step = 1; step <= 3; ++step) {
    AdamUpdate(options, step, host.slice(0, false));
    device::AdamCapturable(options, static_cast<device::AdamOnDevice*>(state.mutable_data_ptr()),
                           s);
  }
  // pow differs in fp64's last bit at most, which fp32 hardly sees.
  EXPECT_LE((host.p - device.p.cpu()).abs().max().item<double>(), 4 * 0x1p-24);
  EXPECT_EQ(state.cpu().view(at::kLong)[0].item<int64_t>(), 3);
}

TEST_F(OnDevice, TheOtherElementwiseRulesHaveTheBitsOfTheHost) {
  for (const auto& [type, grad] : kTypes) {
    for (const SGDOptions& o :
         {SGDOptions{.weight_decay = 0.1}, SGDOptions{.momentum = 0.9, .dampening = 0.25},
          SGDOptions{.momentum = 0.9, .nesterov = true}}) {
      for (int64_t step : {1, 2}) {
        Compare(type, grad, false, [&](Slice s) {
          if (o.momentum == 0) s.state[0] = nullptr;
          SGDUpdate(o, step, s);
        });
      }
    }
    Compare(type, grad, false, [&](const Slice& s) { LionUpdate({.weight_decay = 0.1}, s); });
    for (bool nesterov : {true, false}) {
      Compare(type, grad, false, [&](const Slice& s) {
        Slice momentum = s;
        momentum.copy = nullptr;
        MuonMomentum({.nesterov = nesterov}, momentum, static_cast<c10::BFloat16*>(s.copy));
      });
    }
    Compare(type, grad, false, [&](const Slice& s) {
      const at::Tensor update = Values(s.numel, at::kBFloat16, 5);
      const at::Tensor there = s.on_device ? update.cuda() : update;
      MuonUpdate({}, 3, 7, s, static_cast<const c10::BFloat16*>(there.const_data_ptr()));
    });
  }
}

TEST_F(OnDevice, EightBitMomentsHaveTheBitsOfTheHost) {
  for (at::ScalarType grad : {at::kFloat, at::kBFloat16}) {
    for (int64_t n : {1, 255, 256, 257, 5000, 100'001}) {
      Arrays host(n, 0, at::kFloat, grad);
      const Arrays device(host, at::kCUDA);
      const int64_t blocks = (n + kQuantBlock - 1) / kQuantBlock;
      const at::Tensor here = at::zeros({2, n + 8 + blocks}, at::kByte), there = here.cuda();
      for (int64_t step = 1; step <= 3; ++step) {
        for (const Arrays* a : {static_cast<const Arrays*>(&host), &device}) {
          Slice s = a->slice(0, true);
          s.state = {};
          s.rounding = {true, static_cast<uint32_t>(step), 0};
          const at::Tensor& bytes = s.on_device ? there : here;
          const auto at = [&](int row, int64_t i) {
            return bytes[row].mutable_data_ptr<uint8_t>() + i;
          };
          Adam8bitUpdate({.weight_decay = 0.1}, step, s,
                         {at(0, 0), at(0, n + 8), at(1, 0), at(1, n + 8)});
        }
      }
      host.ExpectSame(device, absl::StrCat(n, " "));
      EXPECT_TRUE(at::equal(here, there.cpu())) << n;
      const at::Tensor values = at::empty({n}), on_device = at::empty({n}, at::kCUDA);
      for (Code code : {Code::kSigned, Code::kUnsigned}) {
        const int row = code == Code::kSigned ? 0 : 1;
        const auto* codes = here[row].const_data_ptr<uint8_t>();
        auto* codes_there = there[row].mutable_data_ptr<uint8_t>();
        Dequantize(code, codes, codes + n + 8, n, values.mutable_data_ptr<float>());
        Dequantize(code, codes_there, codes_there + n + 8, n, on_device.mutable_data_ptr<float>(),
                   true);
        EXPECT_TRUE(at::equal(values, on_device.cpu())) << n;
        const at::Tensor again = at::zeros_like(there[row]);
        auto* bytes = again.mutable_data_ptr<uint8_t>();
        Quantize(code, on_device.const_data_ptr<float>(), n, bytes, bytes + n + 8, true);
        const at::Tensor back = at::empty({n}, at::kCUDA);
        Dequantize(code, bytes, bytes + n + 8, n, back.mutable_data_ptr<float>(), true);
        EXPECT_TRUE(at::equal(back, on_device)) << n;
      }
    }
  }
}

TEST_F(OnDevice, NormsAreTheHostsButForTheOrderOfTheSum) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (int64_t n : {1, 3, 255, 70'000, 1'000'003}) {
      const at::Tensor x = Values(n + 1, type, 1).narrow(0, 1, n);  // not aligned
      for (const at::Tensor& here : {x, x.clone()}) {
        for (double p : {1.0, 2.0}) {
          EXPECT_NEAR(PowerSum(here.cuda(), p) / PowerSum(here, p), 1, 1e-13) << type << n;
        }
        EXPECT_EQ(PowerSum(here.cuda(), kInf), PowerSum(here, kInf));
      }
      at::Tensor bad = x.clone();
      bad[n / 2] = kInf;
      for (double p : {1.0, 2.0, kInf}) EXPECT_FALSE(std::isfinite(PowerSum(bad.cuda(), p)));
    }
  }
}

TEST_F(OnDevice, ChecksumsAreTheHosts) {
  for (int64_t n : {0, 1, 7, 8, 9, 4096, 1'000'003}) {
    const at::Tensor x = at::randint(0, 256, {n + 3}, at::kByte);
    EXPECT_EQ(Checksum(x), Checksum(x.cuda())) << n;
    EXPECT_EQ(Checksum(x.narrow(0, 3, n)), Checksum(x.cuda().narrow(0, 3, n))) << n;
  }
}

TEST_F(OnDevice, ContributionsAreSummedInRankOrderAsOnTheHost) {
  using device::Element;
  using device::Fold;
  for (const auto& [type, element] :
       std::vector<std::pair<at::ScalarType, Element>>{{at::kFloat, Element::kFloat},
                                                       {at::kDouble, Element::kDouble},
                                                       {at::kBFloat16, Element::kBFloat16},
                                                       {at::kHalf, Element::kHalf}}) {
    for (const auto& [op, fold] :
         std::vector<std::pair<ReduceOp, Fold>>{{ReduceOp::kSum, Fold::kSum},
                                                {ReduceOp::kAvg, Fold::kSum},
                                                {ReduceOp::kProduct, Fold::kProduct},
                                                {ReduceOp::kMin, Fold::kMin},
                                                {ReduceOp::kMax, Fold::kMax}}) {
      const int64_t k = 5, n = 1003;
      const at::Tensor in = Values(k * n, type, 1).view({k, n}), out = at::empty({n}, type);
      std::vector<const void*> parts;
      for (int64_t r = 0; r < k; ++r) parts.push_back(in[r].const_data_ptr());
      lins::ReduceInOrder(out.mutable_data_ptr(), parts, n, type, op);
      const at::Tensor there = in.cuda();
      device::ReduceInOrder(there.mutable_data_ptr(), there.const_data_ptr(), k, n, n, element,
                            fold, op == ReduceOp::kAvg ? k : 1);
      EXPECT_TRUE(at::equal(out, there[0].cpu())) << type << " " << ReduceOpName(op);
    }
  }
}

TEST(WithoutKernels, DeviceMemoryIsAnErrorThatSaysWhy) {
  if (device::Compiled()) GTEST_SKIP() << "this build has kernels";
  Slice s;
  s.numel = 1;
  s.on_device = true;
  EXPECT_THROW(AdamUpdate({}, 1, s), Error);
}

}  // namespace
}  // namespace lins
