#include "report_dict.h"

#include "bind.h"

namespace nb = nanobind;

namespace stoker {

nb::object text_or_bytes(const std::string& text) {
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
}

nb::dict histogram_dict(const LogHistogram& h) {
  nb::dict out;
  out["n"] = h.n();
  out["total"] = h.total();
  out["least"] = h.least();
  out["most"] = h.most();
  out["p50"] = h.quantile(0.5);
  out["p90"] = h.quantile(0.9);
  out["p99"] = h.quantile(0.99);
  nb::list buckets;
  for (const auto& bucket : h.buckets()) buckets.append(nb::make_tuple(bucket.begin, bucket.end, bucket.n));
  out["buckets"] = buckets;
  return out;
}

nb::dict counts_dict(const std::map<Reason, std::uint64_t>& counts) {
  nb::dict out;
  for (const auto& [reason, n] : counts) out[str_of(name_of(reason))] = n;
  return out;
}

void add_rejected(nb::dict& out, const RejectedRows& r) {
  out["rejected"] = r.n;
  out["rejected_by_code"] = counts_dict(r.by_reason);
  nb::dict examples;
  for (const auto& [reason, rows] : r.examples) {
    nb::list list;
    for (const RejectedRow& row : rows) {
      nb::dict d;
      d["manifest"] = text_or_bytes(row.manifest);
      d["line"] = row.line;
      d["byte_offset"] = row.byte_offset;
      d["media"] = row.media.empty() ? nb::object(nb::none()) : text_or_bytes(row.media);
      d["message"] = text_or_bytes(row.message);
      list.append(d);
    }
    examples[str_of(name_of(reason))] = list;
  }
  out["examples"] = examples;
}

}  // namespace stoker
