// A choice between types, which device code has no standard header for.
#pragma once

namespace attn {

template <bool kFirst, class First, class Second>
struct Choice {
  using Type = First;
};
template <class First, class Second>
struct Choice<false, First, Second> {
  using Type = Second;
};
template <bool kFirst, class First, class Second>
using Choose = typename Choice<kFirst, First, Second>::Type;

}  // namespace attn
