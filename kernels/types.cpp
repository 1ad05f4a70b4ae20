// SPDX-License-Identifier: MIT
#include "kernels/types.hpp"

namespace oscar {

void AttentionErrors::add(const AttentionErrors& other) {
  softmax_kl += other.softmax_kl;
  output_error += other.output_error;
  output_norm += other.output_norm;
  logit_error += other.logit_error;
  logit_norm += other.logit_norm;
  queries += other.queries;
  query_kl.insert(query_kl.end(), other.query_kl.begin(), other.query_kl.end());
}

}  // namespace oscar
