// A file that appears whole or not at all: written beside its target, synced to disk, renamed. All
// results, reports, baselines and saved tensors are written so: a run may be killed at any moment,
// and what it leaves behind must be readable by the next one. The exception is a journal, which
// grows line by line and may lose its last one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace attnbench {

/// What becomes of a file that is there already.
enum class Existing {
  kReplace,  // it is replaced as a whole; readers that have it open keep the old content
  kRefuse    // it stays, and the call fails: for files that a user would not want to lose
};

/// Writes the parts one after the other, each from where it lies, so that large tensors need not be
/// copied into one buffer first. A symbolic link is followed and stays. The file gets the
/// permissions of a new one, not those of the file that it replaces. A reader sees the old file or
/// the whole new one, also after a crash. Errors: E-IO, with nothing left behind; kRefuse: also
/// when `path` exists, even if it came to exist meanwhile.
void write_file_atomically(const std::filesystem::path& path,
                           const std::vector<std::span<const std::byte>>& parts,
                           Existing existing = Existing::kReplace);

/// The same for a text as it is; no line end is added.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           Existing existing = Existing::kReplace);

/// A file that is written in pieces and takes its place later: for content that does not fit into
/// memory, and for several files that are all to be written before the first one is replaced. A
/// symbolic link at `path` is replaced by the file; what it leads to stays.
class StagedFile {
 public:
  /// A temporary file beside `path`. Errors: E-IO.
  explicit StagedFile(const std::filesystem::path& path);
  StagedFile(StagedFile&&) noexcept;
  ~StagedFile();  // removes the temporary file unless it was published

  void write(std::span<const std::byte> bytes);  // Errors: E-IO
  /// Synced to disk and closed: what is left for publish() is a rename. Errors: E-IO.
  void finish();
  void publish();  // after finish(). Errors: E-IO

 private:
  std::unique_ptr<class TemporaryFile> file_;
};

/// What `path` leads to behind all links, be it a file that is not there yet; a link where they
/// lead in a circle.
std::filesystem::path link_target(const std::filesystem::path& path);

/// What write_file_atomically would refuse (a folder, a device or pipe, a file or folder marked
/// read-only), found before there is anything to write: for commands that compute for minutes and
/// write at their end. A temporary file is made beside the target and removed again, since some
/// refusals show only then. Errors: E-IO.
void check_replaceable(const std::filesystem::path& path);

}  // namespace attnbench
