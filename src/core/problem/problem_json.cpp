#include "core/problem/problem_json.h"

#include "core/problem/problem_fields.h"
#include "core/value.h"

namespace attnbench {
namespace {

Value batch_rows(const std::vector<Request>& batch) {
  Value rows = Value::list();
  for (std::size_t i = 0; i < batch.size();) {
    std::size_t end = i + 1;
    while (end < batch.size() && batch[end] == batch[i]) ++end;
    Value& row = rows.items.emplace_back(Value::map());
    row.at_or_add("count") = Value::of(static_cast<std::int64_t>(end - i));
    row.at_or_add("query_len") = Value::of(batch[i].query_len);
    row.at_or_add("seq_len") = Value::of(batch[i].seq_len);
    i = end;
  }
  return rows;
}

}  // namespace

std::string problem_to_json(const Problem& problem, int indent) {
  Value document = Value::map();
  document.at_or_add("schema") = Value::of(std::int64_t{1});
  document.at_or_add("name") = Value::of(problem.scenario);
  document.at_or_add("description") = Value::of(problem.description);
  for (const Field& field : problem_fields()) {
    // Why here: contract section 1 lists the batch just before its options.
    if (field.key.starts_with("batch_options.")) {
      document.at_or_add("batch") = batch_rows(problem.batch);
    }
    if (field.key == "validation.max_rows") {
      Value& backends = document.at_or_add("backends") = Value::list();
      for (const std::string& name : problem.backends) backends.items.push_back(Value::of(name));
    }
    document.at_or_add_path(field.key) = field.get(problem);
  }
  return to_json_text(document, indent);
}

}  // namespace attnbench
