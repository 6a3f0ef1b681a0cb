#include "ledger/admission.h"

#include "ledger/key_table.h"

namespace kvo {

namespace {

// The same key may be in use in several groups; each is counted alone.
std::uint64_t hash_of(int group, std::string_view key) {
  return KeyTable::hash_of(key) ^ static_cast<std::uint64_t>(group) * 0x9e3779b97f4a7c15;
}

}  // namespace

std::optional<Admission> admission_named(std::string_view name) {
  if (name == "all") return Admission::all;
  if (name == "second_touch") return Admission::second_touch;
  if (name == "tinylfu") return Admission::tinylfu;
  return std::nullopt;
}

void AdmissionFilter::set_capacity(std::int64_t disk_slots) {
  if (by_frequency()) sketch_.set_capacity(disk_slots);
}

void AdmissionFilter::used(int group, std::string_view key) { sketch_.add(hash_of(group, key)); }

bool AdmissionFilter::may_push_out(int group, std::string_view key, std::string_view victim) const {
  return sketch_.count(hash_of(group, key)) >= sketch_.count(hash_of(group, victim));
}

}  // namespace kvo
