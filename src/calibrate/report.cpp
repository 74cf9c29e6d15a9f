// Layers by their error, as rows of a table and as JSON, and the sentences that warn of a choice.
#include "calibrate/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/system/printable.h"

namespace attnbench {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kWarnedLoss = 2;
constexpr double kCostlyLayer = 2;  // times the median error

std::vector<const LayerReport*> worst_first(const CalibrationReport& report) {
  std::vector<const LayerReport*> layers;
  for (const LayerReport& layer : report.layers) layers.push_back(&layer);
  const auto badness = [](const LayerReport* layer) {
    return layer->error ? layer->error->rms_rel() : -1.0;
  };
  std::stable_sort(layers.begin(), layers.end(), [&](const LayerReport* a, const LayerReport* b) {
    return badness(a) > badness(b);
  });
  return layers;
}

/// "0.01234", or the least and the largest of several.
std::string scale_text(const std::vector<double>& scales) {
  const auto [least, largest] = std::minmax_element(scales.begin(), scales.end());
  if (scales.size() == 1) return fmt::format("{:.4g}", *least);
  return fmt::format("{:.3g}..{:.3g}", *least, *largest);
}

std::string share_text(double share) {
  return share == 0 ? "0%" : fmt::format("{:.2g}%", 100 * share);
}

std::string error_text(const std::optional<OutputError>& error) {
  return error ? fmt::format("{:.3e}", error->rms_rel()) : "-";
}

std::string best_text(const LayerReport& layer) {
  const std::optional<ScaleMethod> best = layer.best();
  const std::optional<double> loss = layer.loss();
  if (!best || !loss) return layer.no_error;
  return fmt::format("{}, {:.2f}x", to_string(*best), *loss);
}

using Row = std::vector<std::string>;

/// Median and largest error over all layers, of the scales reported and of each method.
std::vector<Row> summary_rows(const CalibrationReport& report) {
  std::vector<std::vector<double>> columns(1 + kScaleMethods.size());
  for (const LayerReport& layer : report.layers) {
    if (layer.error) columns[0].push_back(layer.error->rms_rel());
    for (std::size_t m = 0; m < kScaleMethods.size(); ++m) {
      if (layer.method_error[m]) columns[1 + m].push_back(layer.method_error[m]->rms_rel());
    }
  }
  Row median{"median", "", "", "", "", ""};
  Row worst{"worst", "", "", "", "", ""};
  for (std::vector<double>& errors : columns) {
    std::sort(errors.begin(), errors.end());
    const std::size_t count = errors.size();
    median.push_back(count == 0 ? "-" : fmt::format("{:.3e}", errors[(count - 1) / 2]));
    worst.push_back(count == 0 ? "-" : fmt::format("{:.3e}", errors.back()));
  }
  median.push_back(
      fmt::format("of {} layer{}", report.layers.size(), report.layers.size() == 1 ? "" : "s"));
  worst.emplace_back();
  return {median, worst};
}

/// First column and last to the left, the others to the right.
void print_rows(std::ostream& out, const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool left = i < 2 || i + 1 == row.size();
      line += left ? fmt::format("{:<{}}  ", row[i], widths[i])
                   : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

std::string settings_text(const CalibrationReport& report, const std::string& chosen) {
  const CalibrationOptions& options = report.options;
  std::string text =
      fmt::format("{} scales, format {}; all methods with margin {}, percentile {}",
                  printable(chosen), to_string(options.format), options.margin, options.percentile);
  if (options.history) text += fmt::format(", amax history of {}", *options.history);
  if (options.amax == AmaxKind::kSigned) text += ", signed amax";
  return text;
}

struct Loss {
  double largest = 0;
  std::string layer;
  int num_layers = 0;

  void add(const OutputError& error, double least, const std::string& name) {
    const double ratio = error.rms_rel() / least;
    if (!(ratio > kWarnedLoss)) return;
    ++num_layers;
    if (ratio <= largest) return;
    largest = ratio;
    layer = name;
  }
};

std::string warning(const std::string& what, const Loss& loss, std::size_t num_layers) {
  return fmt::format(
      "{} loses more than {}x to the best method in {} of {} layer{}, most in '{}': {:.1f}x", what,
      kWarnedLoss, loss.num_layers, num_layers, num_layers == 1 ? "" : "s", shown(loss.layer),
      loss.largest);
}

/// Upstream's signed maximum may miss what is largest (§10.6): how much of it saturates.
void warn_of_signed_amax(const CalibrationReport& report, std::vector<std::string>& warnings) {
  if (report.options.amax != AmaxKind::kSigned) return;
  std::int64_t count = 0;
  std::string where;
  double most = 0;
  for (const LayerReport& layer : report.layers) {
    for (const RoleReport& role : layer.roles) {
      if (role.losses.saturated == 0) continue;
      ++count;
      if (role.losses.saturated <= most) continue;
      most = role.losses.saturated;
      where = fmt::format("tensor {} of layer '{}'", kRoleNames[role.role], shown(layer.layer));
    }
  }
  if (count == 0) return;
  warnings.push_back(
      fmt::format("signed amax: values of {} tensor{} saturate{}, most in {}: {} of its elements",
                  count, count == 1 ? "" : "s", count == 1 ? "s" : "", where, share_text(most)));
}

double least_error(const LayerReport& layer, ScaleMethod best) {
  return layer.method_error[static_cast<std::size_t>(best)]->rms_rel();
}

OrderedJson finite_or_null(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

OrderedJson error_json(const std::optional<OutputError>& error) {
  if (!error) return nullptr;
  return {{"rms_rel", finite_or_null(error->rms_rel())},
          {"max_abs", finite_or_null(error->max_abs)}};
}

OrderedJson layer_json(const LayerReport& layer) {
  OrderedJson tensors = OrderedJson::object();
  for (const RoleReport& role : layer.roles) {
    tensors[kRoleNames[role.role]] = {
        {"scale",
         role.scale.size() == 1 ? OrderedJson(role.scale.front()) : OrderedJson(role.scale)},
        {"amax", role.amax},
        {"saturated", role.losses.saturated},
        {"flushed", role.losses.flushed}};
  }
  OrderedJson methods = OrderedJson::object();
  for (const ScaleMethod method : kScaleMethods) {
    methods[to_string(method)] = error_json(layer.method_error[static_cast<std::size_t>(method)]);
  }
  const std::optional<ScaleMethod> best = layer.best();
  const std::optional<double> loss = layer.loss();
  return {
      {"layer", layer.layer},
      {"num_forwards", layer.num_forwards},
      {"tensors", std::move(tensors)},
      {"error", error_json(layer.error)},
      {"error_reason", layer.no_error.empty() ? OrderedJson(nullptr) : OrderedJson(layer.no_error)},
      {"methods", std::move(methods)},
      {"best", best ? OrderedJson(to_string(*best)) : OrderedJson(nullptr)},
      {"loss", loss ? finite_or_null(*loss) : OrderedJson(nullptr)}};
}

}  // namespace

std::vector<std::int64_t> costly_layers(const CalibrationReport& report) {
  constexpr std::size_t kFewestLayers = 3;
  const ScaleFormat format = report.options.format;
  if (format != ScaleFormat::kKvCache && format != ScaleFormat::kKvCacheLegacy) return {};
  std::vector<double> errors;
  for (const LayerReport& layer : report.layers) {
    if (layer.error) errors.push_back(layer.error->rms_rel());
  }
  if (errors.size() < kFewestLayers) return {};
  std::sort(errors.begin(), errors.end());
  const double limit = kCostlyLayer * errors[(errors.size() - 1) / 2];
  std::vector<std::int64_t> numbers;
  for (const LayerReport* layer : worst_first(report)) {
    if (!layer->error || !(layer->error->rms_rel() > limit)) continue;
    if (const auto number = layer_number(layer->layer)) numbers.push_back(*number);
  }
  return numbers;
}

void write_scale_table(std::ostream& out, const CalibrationReport& report,
                       const std::string& chosen) {
  out << settings_text(report, chosen) << "\n";
  out << "error: ||output - float64|| / ||float64|| of attention with the scales\n";
  std::vector<Row> rows{{"layer", "tensor", "scale", "amax", "saturated", "flushed", "error",
                         "amax", "percentile", "mse", "best, loss"}};
  for (const LayerReport* layer : worst_first(report)) {
    bool is_first = true;
    for (const RoleReport& role : layer->roles) {
      const bool joined = report.options.format == ScaleFormat::kKvCacheLegacy;
      Row row{is_first ? shown(layer->layer) : "",
              joined ? "k, v" : kRoleNames[role.role],
              scale_text(role.scale),
              fmt::format("{:.4g}", role.amax),
              share_text(role.losses.saturated),
              share_text(role.losses.flushed)};
      row.push_back(is_first ? error_text(layer->error) : "");
      for (const auto& error : layer->method_error) {
        row.push_back(is_first ? error_text(error) : "");
      }
      row.push_back(is_first ? best_text(*layer) : "");
      rows.push_back(std::move(row));
      is_first = false;
    }
  }
  if (report.layers.size() > 1) {
    for (Row& row : summary_rows(report)) rows.push_back(std::move(row));
  }
  print_rows(out, rows);
  if (const std::vector<std::int64_t> costly = costly_layers(report); !costly.empty()) {
    out << fmt::format("more than {}x the median error: --kv-cache-dtype-skip-layers {}\n",
                       kCostlyLayer, fmt::join(costly, " "));
  }
}

std::vector<std::string> scale_warnings(const CalibrationReport& report,
                                        const std::string& chosen) {
  std::array<Loss, kScaleMethods.size()> losses;
  Loss loss_of_chosen;
  for (const LayerReport& layer : report.layers) {
    const std::optional<ScaleMethod> best = layer.best();
    if (!best || !layer.error) continue;
    const double least = least_error(layer, *best);
    loss_of_chosen.add(*layer.error, least, layer.layer);
    for (std::size_t m = 0; m < losses.size(); ++m) {
      if (layer.method_error[m]) losses[m].add(*layer.method_error[m], least, layer.layer);
    }
  }
  std::vector<std::string> warnings;
  warn_of_signed_amax(report, warnings);
  const std::size_t count = report.layers.size();
  if (loss_of_chosen.num_layers > 0) warnings.push_back(warning(chosen, loss_of_chosen, count));
  for (const ScaleMethod method : kScaleMethods) {
    const Loss& loss = losses[static_cast<std::size_t>(method)];
    if (loss.num_layers == 0 || chosen == to_string(method)) continue;
    warnings.push_back(warning(to_string(method), loss, count));
  }
  return warnings;
}

std::string scale_report_json(const CalibrationReport& report, const std::string& chosen) {
  const CalibrationOptions& options = report.options;
  OrderedJson layers = OrderedJson::array();
  for (const LayerReport* layer : worst_first(report)) layers.push_back(layer_json(*layer));
  const OrderedJson document = {
      {"schema_version", 1},
      {"scales", chosen},
      {"format", to_string(options.format)},
      {"percentile", options.percentile},
      {"margin", options.margin},
      {"history", options.history ? OrderedJson(*options.history) : OrderedJson(nullptr)},
      {"amax", options.amax == AmaxKind::kSigned ? "signed" : "abs"},
      {"layers", std::move(layers)},
      {"costly_layers", costly_layers(report)},
      {"warnings", scale_warnings(report, chosen)}};
  return document.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace attnbench
