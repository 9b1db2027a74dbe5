// Kernels whose machine code the tests damage: memory, branches, local memory and barriers.
__kernel void scale(__global float *x, __global const float *y, float factor, uint n) {
  uint i = get_global_id(0);
  if (i < n) x[i] = y[i] * factor + x[i];
}

__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void total(__global float *x, __global const float *y,
                                                                    float factor, uint n) {
  __local float part[64];
  uint l = get_local_id(0);
  float sum = 0;
  for (uint i = l; i < n; i += 64) sum += y[i] * factor;
  part[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint s = 32; s > 0; s >>= 1) {
    if (l < s) part[l] += part[l + s];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (l == 0) x[0] = part[0];
}
