// Kernels whose .ze_info differs in every part that the reader knows.
__constant int table[4] = {1, 2, 3, 4};

typedef struct {
  int a;
  float b;
  char c;
  long d;
} Mixed;

kernel void constants(global int* out, int i) { out[i] = table[i & 3]; }

kernel void structs(global float* out, Mixed s, local int* first, local float* second, constant int* c) {
  first[get_local_id(0)] = s.a;
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = first[0] + s.b + s.c + s.d + c[0];
  second[get_local_id(0)] = 2;
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(1)] += second[3];
}

__attribute__((reqd_work_group_size(8, 4, 2))) kernel void sizes(global int* out) {
  out[get_global_id(0) + get_global_id(1) * get_global_size(0)] =
      get_local_size(0) + get_num_groups(1) + get_global_offset(2) + get_work_dim() + get_local_id(2);
}

kernel void inline_slm(global int* out) {
  local int shared[100];
  shared[get_local_id(0)] = out[get_local_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = shared[99 - get_local_id(0)];
}

kernel void private_array(global int* out, int n) {
  int a[300];
  for (int i = 0; i < n; i++) a[(i * 7) % 300] = out[i];
  int sum = 0;
  for (int i = 0; i < 300; i++) sum += a[(i * 13) % n];
  out[get_global_id(0)] = sum;
}
