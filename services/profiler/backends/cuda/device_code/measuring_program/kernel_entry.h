// What a program's own part tells its measuring part: the kernel, and the size of each of its parameters.
//
// In the generated file this text follows the source of the kernel, whose macros may carry any name; so everything here
// begins with kernalyse_.
#ifndef KERNALYSE_KERNEL_ENTRY
#define KERNALYSE_KERNEL_ENTRY

struct kernalyse_kernel_entry {
    const void* kernalyse_function;
    unsigned kernalyse_parameter_count;
    const unsigned long* kernalyse_parameter_sizes;  // bytes; one more element than there are parameters
};

extern "C" const kernalyse_kernel_entry* kernalyse_find_kernel();

template <typename... kernalyse_parameters>
const kernalyse_kernel_entry* kernalyse_entry_of(void (*kernalyse_kernel)(kernalyse_parameters...)) {
    static const unsigned long kernalyse_sizes[] = {sizeof(kernalyse_parameters)..., 0};
    static const kernalyse_kernel_entry kernalyse_entry = {reinterpret_cast<const void*>(kernalyse_kernel),
                                                           sizeof...(kernalyse_parameters), kernalyse_sizes};
    return &kernalyse_entry;
}

#endif
