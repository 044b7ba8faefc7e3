// Keys of groups of other projects.
#include <ATen/core/List.h>
#include <torch/csrc/autograd/python_variable.h>

#include <set>
#include <utility>

#include "bindings/bindings.h"
#include "others/option_names.h"
#include "others/rules.h"
#include "others/saved_groups.h"

namespace torchdion::bindings {

using others::Entries;

namespace {

// A value that is none of those which state dicts of both languages have.
struct PythonObject : others::Foreign {
  explicit PythonObject(py::handle given) : object(py::reinterpret_borrow<py::object>(given)) {}

  std::string shown() const override {
    return py::module_::import("torchdion.words").attr("shown")(object).cast<std::string>();
  }

  std::string name() const override {
    const bool is_optimizer = py::isinstance(object, py::module_::import("torch.optim").attr("Optimizer"));
    const py::object type = is_optimizer ? py::object(py::type::of(object)) : object;
    return PyType_Check(type.ptr()) ? type.attr("__name__").cast<std::string>() : std::string();
  }

  py::object object;
};

c10::IValue entry_of(py::handle value, bool is_item = false) {
  const bool is_tuple = PyTuple_Check(value.ptr());
  if (!is_item && (is_tuple || PyList_Check(value.ptr()))) {
    c10::impl::GenericList items(c10::AnyType::get());
    for (const py::handle item : value) items.push_back(entry_of(item, /*is_item=*/true));
    return is_tuple ? c10::IValue(c10::ivalue::Tuple::create(items.vec())) : c10::IValue(items);
  }
  if (THPVariable_Check(value.ptr())) return THPVariable_Unpack(value.ptr());
  if (const std::optional<algorithms::Value> plain = plain_value_of(value)) return others::to_entry(*plain);
  return c10::IValue::make_capsule(c10::make_intrusive<PythonObject>(value));
}

py::object from_entry(const c10::IValue& entry) {
  if (entry.isTensor()) return py::reinterpret_steal<py::object>(THPVariable_Wrap(entry.toTensor()));
  if (entry.isCapsule()) return dynamic_cast<const PythonObject&>(*others::as_foreign(entry)).object;
  if (const std::optional<algorithms::Value> value = others::value_of(entry)) return py::cast(*value);
  py::list items;
  for (const c10::IValue& item : others::items_of(entry)) items.append(from_entry(item));
  return entry.isTuple() ? py::object(py::tuple(items)) : items;
}

Entries entries_of(const py::dict& group) {
  Entries entries;
  for (const auto& [key, value] : group) {
    const std::optional<algorithms::Value> name = plain_value_of(key);
    const auto* text = name ? std::get_if<std::string_view>(&*name) : nullptr;
    if (text && *text != "params" && *text != "param_names") entries.emplace(*text, entry_of(value));
  }
  return entries;
}

// Calls f(entries) and gives the group what that changes.
template <class F>
auto change(const py::dict& group, const F& f) {
  const Entries before = entries_of(group);
  Entries entries = before;
  auto result = f(entries);
  for (const auto& [key, value] : before) {
    if (!entries.contains(key)) group.attr("pop")(key);
  }
  for (const auto& [key, value] : entries) {
    const auto old = before.find(key);
    if (old == before.end() || !old->second.is(value)) group[py::str(key)] = from_entry(value);
  }
  return result;
}

}  // namespace

void bind_others(py::module_& m) {
  struct GroupKeys {};
  py::class_<GroupKeys> keys(m, "GroupKeys");
  const py::call_guard<PythonWords> speaking;
  py::dict names;
  for (const others::OtherName& name : others::other_names()) {
    names[py::str(name.key)] = py::tuple(py::cast(name.options));
  }
  keys.attr("other_names") = names;
  keys.attr("selectors") = py::cast(others::selectors());
  keys.def_static(
      "choose_algorithm",
      [](const py::dict& group, const std::string& preferred, bool is_named, const std::string& where) {
        const Entries entries = entries_of(group);
        const std::string own = others::text_of(entries, "algorithm");
        const std::string chosen = others::chosen_algorithm(entries, own, preferred, is_named, where);
        if (chosen != own) group["algorithm"] = chosen;
      },
      speaking);
  keys.def_static(
      "unite",
      [](const py::dict& group, const std::set<std::string>& written, bool refuses, const std::string& where) {
        others::United united =
            change(group, [&](Entries& entries) { return others::unite_names(entries, written, refuses, where); });
        return std::pair(std::move(united.meant), std::move(united.contradictions));
      },
      speaking);
  keys.def_static(
      "rename_dion_package",
      [](const py::dict& group, const others::Shapes& shapes, const std::string& where) {
        change(group, [&](Entries& entries) {
          others::rename_keys_of_dion_package(entries, shapes, where);
          return true;
        });
      },
      speaking);
  keys.def_static(
      "rename_saved",
      [](const py::dict& group, const py::dict& own, const others::Shapes& shapes, const std::string& where) {
        const others::Saver saver = change(group, [&](Entries& entries) {
          return others::rename_saved_group(entries, shapes, entries_of(own), where);
        });
        return std::pair(saver != others::Saver::this_library, others::states_of(saver));
      },
      speaking);
}

}  // namespace torchdion::bindings
