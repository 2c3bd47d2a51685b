// SPDX-License-Identifier: MIT
// The functions of exllamav3's kernels that the overlay calls, under the module name of the full extension.
#include <torch/extension.h>

#include "quant/exl3_gemm.cuh"
#include "quant/exl3_moe.cuh"
#include "quant/exl3_moe_coop.cuh"
#include "quant/hadamard.cuh"
#include "quant/reconstruct.cuh"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.def("exl3_gemm", &exl3_gemm);
    m.def("exl3_moe", &exl3_moe);
    m.def("exl3_moe_coop", &exl3_moe_coop);
    m.def("exl3_moe_gather", &exl3_moe_gather);
    m.def("exl3_moe_max_concurrency", &exl3_moe_max_concurrency);
    m.def("had_r_128", &had_r_128);
    m.def("reconstruct", &reconstruct);
    m.attr("bits") = TANDEM_BITS;
}
