#include "runtime/autograd_hooks.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "dtensor/backward_error.h"

namespace lins {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Carries a callback through the graph as the only saved value of a node.
struct Callback : torch::CustomClassHolder {
  explicit Callback(std::function<void()> f) : fn(std::move(f)) {}
  std::function<void()> fn;
};

// Identity; its backward tells that the gradients of all inputs are complete.
struct Boundary : torch::autograd::Function<Boundary> {
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs,
                               std::function<void()> fn) {
    ctx->saved_data["callback"] =
        c10::IValue::make_capsule(c10::make_intrusive<Callback>(std::move(fn)));
    ctx->set_materialize_grads(false);
    return inputs.vec();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto callback =
        c10::static_intrusive_pointer_cast<Callback>(ctx->saved_data["callback"].toCapsule());
    GuardBackward(callback->fn);
    grads.emplace_back();  // of fn
    return grads;
  }
};

}  // namespace

std::vector<at::Tensor> OnInputGradients(const std::vector<at::Tensor>& inputs,
                                         std::function<void()> fn) {
  variable_list watched;
  for (const at::Tensor& t : inputs) {
    if (t.defined() && t.requires_grad()) watched.push_back(t);
  }
  if (watched.empty() || !c10::GradMode::is_enabled()) return inputs;
  const variable_list marked = Boundary::apply(at::TensorList(watched), std::move(fn));
  std::vector<at::Tensor> out;
  size_t next = 0;
  for (const at::Tensor& t : inputs) {
    out.push_back(t.defined() && t.requires_grad() ? marked[next++] : t);
  }
  return out;
}

void OnOutputGradient(const std::vector<at::Tensor>& outputs, const std::function<void()>& fn) {
  for (const at::Tensor& t : outputs) {
    if (t.defined() && t.requires_grad()) {
      t.register_hook([fn](const at::Tensor&) { GuardBackward(fn); });
    }
  }
}

std::shared_ptr<void> OnAccumulatedGradient(const at::Tensor& leaf,
                                            std::function<void(at::Tensor&)> fn) {
  // The node is kept alive by the handle; it knows the leaf only weakly enough for both to be
  // freed.
  auto node = torch::autograd::impl::grad_accumulator(leaf);
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(leaf.getIntrusivePtr());
  const uintptr_t key =
      node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [weak, fn = std::move(fn)](const variable_list& outputs, const variable_list&) {
            if (auto impl = weak.lock()) {
              const Variable variable{
                  c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(std::move(impl))};
              if (variable.grad().defined()) GuardBackward([&] { fn(variable.mutable_grad()); });
            }
            return outputs;
          }));
  return std::shared_ptr<void>(static_cast<void*>(node.get()),
                               [node, key](void*) { node->del_post_hook(key); });
}

void OnBackwardEnd(std::function<void()> fn) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [fn = std::move(fn)] { GuardBackward(fn); });
}

bool InsideBackward() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace lins
