// SPDX-License-Identifier: GPL-2.0

#include <drm/drm_gem.h>
#include <drm/ttm/ttm_bo.h>
#include <drm/ttm/ttm_device.h>
#include <drm/ttm/ttm_resource.h>
#include <drm/ttm/ttm_tt.h>
#include <linux/io.h>

#ifdef CONFIG_RUST_DRM_TTM
__rust_helper phys_addr_t rust_helper_page_to_phys(struct page *page)
{
	return page_to_phys(page);
}

__rust_helper bool
rust_helper_drm_gem_object_is_shared_for_memory_stats(struct drm_gem_object *obj)
{
	return drm_gem_object_is_shared_for_memory_stats(obj);
}

__rust_helper void
rust_helper_ttm_bo_move_to_lru_tail_unlocked(struct ttm_buffer_object *bo)
{
	ttm_bo_move_to_lru_tail_unlocked(bo);
}

__rust_helper void rust_helper_ttm_bo_move_null(struct ttm_buffer_object *bo,
						struct ttm_resource *new_mem)
{
	ttm_bo_move_null(bo, new_mem);
}

__rust_helper bool rust_helper_ttm_tt_is_populated(struct ttm_tt *tt)
{
	return ttm_tt_is_populated(tt);
}

__rust_helper bool rust_helper_ttm_tt_is_swapped(const struct ttm_tt *tt)
{
	return ttm_tt_is_swapped(tt);
}

__rust_helper struct ttm_resource_manager *
rust_helper_ttm_manager_type(struct ttm_device *bdev, int mem_type)
{
	return ttm_manager_type(bdev, mem_type);
}

__rust_helper void
rust_helper_ttm_set_driver_manager(struct ttm_device *bdev, int type,
				   struct ttm_resource_manager *manager)
{
	ttm_set_driver_manager(bdev, type, manager);
}

__rust_helper void
rust_helper_ttm_resource_manager_set_used(struct ttm_resource_manager *man,
					  bool used)
{
	ttm_resource_manager_set_used(man, used);
}

__rust_helper void
rust_helper_ttm_resource_manager_cleanup(struct ttm_resource_manager *man)
{
	ttm_resource_manager_cleanup(man);
}
#endif
