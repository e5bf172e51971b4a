// SPDX-License-Identifier: GPL-2.0

//! Arguments that no caller should give, for each ioctl of mgpu.

use vvram_tests::badinput::{check_all, unbinds, Gpu};
use vvram_tests::compute::{self, Vm};
use vvram_tests::debugfs::Counter;
use vvram_tests::describe::{Call, File, Thing};
use vvram_tests::drm::EITHER;
use vvram_tests::map::PAGE;
use vvram_tests::mgpu::Mgpu;
use vvram_tests::pci::PciDevice;
use vvram_tests::uapi::VmBind;
use vvram_tests::{heap, igt_main, uapi, Outcome};

fn gpu() -> Outcome {
    let mgpu = Mgpu::first()?;
    let drm = &mgpu.drm;
    let object = drm.create_flags(4 * PAGE as u64, EITHER)?;
    let import = drm.import(&heap::allocate(PAGE as u64)?)?;
    let vm = Vm::new(&mgpu)?;
    let gpu = Gpu::new(drm, &object)?;
    let prepare = |call: &Call| {
        if call.request == compute::EXEC {
            drm.gpu_bind_raw(VmBind {
                vm: vm.number(),
                handle: object.handle(),
                size: PAGE as u64,
                ..Default::default()
            })?;
        }
        Ok(())
    };
    let state = || {
        let mut state = gpu.state(0)?;
        state.push(drm.counter(Counter::Vms)?);
        Ok(state)
    };
    let another = |thing| match thing {
        Thing::Vm => Ok(Vm::new(&mgpu)?.leak().into()),
        thing => gpu.another(thing),
    };
    let mut scene = gpu.scene(&state)?;
    scene.prepare = Some(&prepare);
    scene.another = Some(&another);
    let other_gpu = || unbinds(&PciDevice::vvram()?);
    scene.meanwhile = Some(&other_gpu);
    scene.handles[Thing::Vm as usize] = (vm.number().into(), u64::from(vm.number()) + 1);
    let is_info = |call: &Call| call.request == uapi::VVRAM_PEER_IMPORT_INFO;
    check_all(&mut scene, File::Mgpu, |call| !is_info(call))?;
    scene.handles[Thing::Gem as usize].0 = import.handle().into();
    check_all(&mut scene, File::Mgpu, is_info)?;
    mgpu.clean()
}

igt_main! {
    "gpu", "each field of the calls of mgpu and of the core", gpu;
}
