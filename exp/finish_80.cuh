/// dQ sums of blocks of 80 rows in transposed fragments: [block][16 columns][8 rows][lane][4].
__global__ void finish_80_kernel(const __grid_constant__ Bits16BackwardParameters p) {
    gradtile::cuda::device::await_predecessor();
    const int first = blockIdx.x * 16, bh = first / p.padded_rows, row = first % p.padded_rows + threadIdx.x / 16, column = threadIdx.x % 16 * 8;
    if (row >= p.mask.queries) return;
    const float* const block = p.d_q_sums + (long)bh * p.padded_rows * D + (long)(row / 80) * 80 * D;
    const int r = row % 80;
    unsigned short out[8];
    for (int i = 0; i < 8; ++i) {
        const int c = column + i;
        const float v = block[((c / 16) * 10 + r / 8) * 128 + ((c % 8) * 4 + r % 8 / 2) * 4 + c % 16 / 8 * 2 + r % 2] * p.scale;
        out[i] = __bfloat16_as_ushort(__float2bfloat16(v));
    }
    *reinterpret_cast<uint4*>(p.d_q.data + (long)(bh / p.sizes.heads) * p.d_q.batch_stride + (long)row * p.d_q.row_stride + bh % p.sizes.heads * p.d_q.head_stride + column) = *reinterpret_cast<uint4*>(out);
}
