#!/bin/sh
# Builds the fake in three driver generations, which differ in the functions they export:
#   build.sh OUT  ->  OUT/full, OUT/r470, OUT/r535, each with libnvidia-ml.so.1. Takes about two seconds.
set -eu
source_dir=$(cd "$(dirname "$0")" && pwd)
out=$1
compiler=${CC:-cc}

# R470: no version 3 of the process lists, no MemoryInfo_v2, ThrottleReasons instead of EventReasons, no GPM.
r470='nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v3
nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetTemperatureV
nvmlDeviceGetMarginTemperature nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetSupportedClocksEventReasons
nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfoV nvmlGpmQueryDeviceSupport nvmlGpmSampleAlloc
nvmlGpmSampleFree nvmlGpmSampleGet nvmlGpmMigSampleGet nvmlGpmMetricsGet nvmlDeviceGetConfComputeMemSizeInfo
nvmlDeviceGetRunningProcessDetailList nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetNumaNodeId
nvmlDeviceGetDriverModel_v2 nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization'

# R535.43 to 535.86: ConfComputeMemSizeInfo without DetailList; with abi_proc_v3=32 the process struct has 32 bytes.
r535='nvmlDeviceGetTemperatureV nvmlDeviceGetMarginTemperature nvmlDeviceGetRunningProcessDetailList
nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetNumaNodeId nvmlDeviceGetDriverModel_v2
nvmlDeviceGetGpuFabricInfoV'

build() {
    mkdir -p "$out/$1"
    {
        echo '{ global: nvml*; local:'
        for symbol in $2; do echo "$symbol;"; done
        echo '*; };'
    } > "$out/$1.map"
    "$compiler" -O2 -fPIC -shared -Wall -Wno-misleading-indentation -fvisibility=hidden \
        -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script="$out/$1.map" \
        -o "$out/$1/libnvidia-ml.so.1.$$" "$source_dir/fakenvml.c" -lpthread
    mv "$out/$1/libnvidia-ml.so.1.$$" "$out/$1/libnvidia-ml.so.1"
}

build full ''
build r470 "$r470"
build r535 "$r535"
