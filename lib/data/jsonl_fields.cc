#include "data/jsonl_fields.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <unordered_map>

namespace ftrun {
namespace {

using Names = std::initializer_list<const char*>;

// docs/data.md and scripts/training_data/fields.py have the same list; a test compares them.
constexpr Names kHarmlessNames = {"id",
                                  "uuid",
                                  "guid",
                                  "idx",
                                  "index",
                                  "row",
                                  "line",
                                  "number",
                                  "key",
                                  "prompt_id",
                                  "conversation_id",
                                  "session_id",
                                  "dialogue_id",
                                  "dialog_id",
                                  "message_id",
                                  "document_id",
                                  "example_id",
                                  "sample_id",
                                  "source_id",
                                  "dataset_id",
                                  "user_id",
                                  "hash",
                                  "sha1",
                                  "sha256",
                                  "md5",
                                  "digest",
                                  "source",
                                  "sources",
                                  "origin",
                                  "dataset",
                                  "dataset_name",
                                  "subset",
                                  "split",
                                  "config",
                                  "file",
                                  "filename",
                                  "file_name",
                                  "path",
                                  "url",
                                  "urls",
                                  "link",
                                  "domain",
                                  "meta",
                                  "metadata",
                                  "extra_info",
                                  "info",
                                  "timestamp",
                                  "time",
                                  "date",
                                  "created",
                                  "created_at",
                                  "updated",
                                  "updated_at",
                                  "author",
                                  "authors",
                                  "annotator",
                                  "license",
                                  "licence",
                                  "copyright",
                                  "version",
                                  "schema_version",
                                  "language",
                                  "lang",
                                  "locale",
                                  "category",
                                  "categories",
                                  "topic",
                                  "topics",
                                  "tag",
                                  "tags",
                                  "task",
                                  "task_type",
                                  "task_name",
                                  "difficulty",
                                  "comment",
                                  "comments",
                                  "note",
                                  "notes",
                                  "model_name",
                                  "generator",
                                  "length",
                                  "num_turns",
                                  "turn_count",
                                  "num_tokens",
                                  "token_count",
                                  "n_tokens",
                                  "num_messages",
                                  "char_count",
                                  "word_count",
                                  "__index_level_0__",
                                  "unnamed_0"};

/// Outputs of a tokenizer that do not affect the loss. They are harmless only together with token
/// ids.
constexpr Names kTokenizerOutputs = {"special_tokens_mask", "offset_mapping",
                                     "overflow_to_sample_mapping"};

/// Drops the characters that do not count in a name. An ASCII letter may be written as \\u00NN.
std::string canonical_name(std::string_view key) {
  std::string name;
  for (size_t i = 0; i < key.size(); ++i) {
    auto c = static_cast<unsigned char>(key[i]);
    if (key.substr(i).starts_with("\\u00") && i + 6 <= key.size()) {
      unsigned value = 0;
      const char* end = key.data() + i + 6;
      if (std::from_chars(key.data() + i + 4, end, value, 16).ptr == end && value < 0x80) {
        c = static_cast<unsigned char>(value);
        i += 5;
      }
    }
    if (c >= 'A' && c <= 'Z') c = static_cast<unsigned char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c >= 0x80) name += static_cast<char>(c);
  }
  return name;
}

using FieldTable = std::unordered_map<std::string, JsonlField>;

FieldTable make_field_table() {
  FieldTable table;
  const auto add = [&table](JsonlField field, Names names) {
    for (const char* name : names) table[canonical_name(name)] = field;
  };
  add(JsonlField::kMetadata, kHarmlessNames);
  add(JsonlField::kMetadata, kTokenizerOutputs);
  add(JsonlField::kInputIds, {"input_ids"});
  add(JsonlField::kLabels, {"labels"});
  add(JsonlField::kAttentionMask, {"attention_mask"});
  add(JsonlField::kPositionIds, {"position_ids"});
  add(JsonlField::kLossMask, {"completion_mask", "assistant_masks", "assistant_mask", "loss_mask",
                              "label_mask", "labels_mask", "train_mask"});
  add(JsonlField::kLengths, {"seq_lengths", "sequence_lengths", "seq_lens", "sequence_lens",
                             "seqlens", "seq_len", "lengths", "doc_lengths", "document_lengths"});
  add(JsonlField::kBoundaries, {"cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seqlens_k",
                                "cu_seq_lens_q", "cu_seq_lens_k"});
  add(JsonlField::kSegments, {"segment_ids", "segments", "sequence_ids", "sequence_id", "seq_idx",
                              "document_ids", "doc_ids", "token_type_ids"});
  add(JsonlField::kWeights, {"loss_scale", "loss_scales", "advantage", "advantages"});
  add(JsonlField::kDesirable, {"label", "kto_tag", "kto_label", "desirable", "is_desirable"});
  add(JsonlField::kTrain, {"train", "trainable", "is_trainable", "do_train"});
  add(JsonlField::kOtherTargets, {"label_ids", "target_ids", "targets", "target", "shift_labels",
                                  "shifted_labels", "decoder_input_ids", "inputs_embeds",
                                  "teacher_logits", "teacher_logprobs", "logprobs", "logits"});
  return table;
}

/// Returns the meaning of a name by its prefix or suffix.
JsonlField classify_by_affix(std::string_view name) {
  const auto begins = [name](Names parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const char* p) { return name.starts_with(p); });
  };
  const auto ends = [name](Names parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const char* p) { return name.ends_with(p); });
  };
  if (begins({"rejected", "chosen"})) return JsonlField::kPreference;
  if (ends({"mask", "masks", "masked"}) || begins({"mask"})) return JsonlField::kOtherMask;
  if (ends({"weight", "weights"})) return JsonlField::kWeights;
  if (begins({"image", "video", "audio", "pixelvalues", "media"})) return JsonlField::kMedia;
  return JsonlField::kUnknown;
}

}  // namespace

JsonlField classify_jsonl_key(std::string_view key) {
  static const FieldTable known = make_field_table();
  const std::string name = canonical_name(key);
  const auto found = known.find(name);
  return found == known.end() ? classify_by_affix(name) : found->second;
}

}  // namespace ftrun
